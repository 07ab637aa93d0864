"""Playing exported policies again, and comparing runs over seeds. No Ray."""
