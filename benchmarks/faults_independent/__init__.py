"""Small trainings with one planted fault each, or none, made without knowledge of the rules that judge them."""
