"""Where in the user's code an allocation came from."""
