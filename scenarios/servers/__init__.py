"""Servers as they are started, read from flags and files into scenarios, and written from scenarios."""
