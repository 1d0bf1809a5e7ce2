"""What a run would do if it were otherwise: operational laws and a simulator of in-order delivery. Pure."""
