"""Video of moving people, drawn and real."""
