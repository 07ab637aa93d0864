"""What keeps this project: its yardsticks, pages that are generated, hand-outs, papers."""
