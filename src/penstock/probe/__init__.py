"""Short measurements, each of one resource alone and bounded in time: what a plan is made from without a recording."""
