"""The cell's flow: what is executed, loops ended early, values set by the user."""
