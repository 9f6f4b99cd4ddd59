"""Sources of rows: what can be read block by block, into memory that the reader gives, in any process."""
