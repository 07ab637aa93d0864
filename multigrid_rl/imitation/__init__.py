"""Add-on: recorded play, cloning, DAgger, GAIL and AIRL."""
