"""What the parts of a running wave share: its threads, its memory, its observers, and their protocols."""
