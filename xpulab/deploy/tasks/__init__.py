"""Tasks on the engines: how they are sent, followed, stopped and answered, and the rows that they use."""
