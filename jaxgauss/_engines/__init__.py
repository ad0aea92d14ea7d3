"""Engines, each the code of one method, and the plans that choose among them."""
