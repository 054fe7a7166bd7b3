"""Faults for real processes under load, and a book in which every answer is compared."""
