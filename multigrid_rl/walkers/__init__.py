"""Add-on: bodies in MuJoCo, Unity's ML-Agents."""
