"""Networks in plain torch. No ray."""
