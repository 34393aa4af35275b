"""Kernel times per GPU and software, of any model: read (`read_tables`), and put together (`compose`)."""

from simulator.timing.tables.compose import compose
from simulator.timing.tables.table_schema import SCHEMA, PartSource, Tables, load_tables, parts_of, read_tables

__all__ = ["SCHEMA", "PartSource", "Tables", "compose", "load_tables", "parts_of", "read_tables"]
