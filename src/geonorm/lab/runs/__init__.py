"""What a run leaves: its folder, its record, and the statistics over many."""
