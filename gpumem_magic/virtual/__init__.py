"""The virtual GPU: a card of the catalog, simulated on the host. `gpu` switches it on, `source`
measures on it."""
