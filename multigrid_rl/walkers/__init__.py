"""Add-on: bodies in MuJoCo, Unity's ML-Agents, episodes that environments draw for films."""
