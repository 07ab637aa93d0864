"""How the tables came to be, by Alembic."""
