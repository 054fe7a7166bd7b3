"""Commands of `tandem` beside those that serve, each found by its entry point."""
