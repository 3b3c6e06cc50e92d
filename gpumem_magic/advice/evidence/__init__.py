"""What rules look at: facts about a cell's code, its graph and its memory."""
