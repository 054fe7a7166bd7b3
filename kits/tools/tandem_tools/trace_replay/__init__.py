"""Traces through the router's real cores and policies, in virtual time: `tandem replay`."""
