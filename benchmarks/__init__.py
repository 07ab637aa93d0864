"""Speed against peers and proofs that take longer than tests."""
