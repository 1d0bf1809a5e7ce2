"""JPEGs decoded where their batch arrives: by whom, how they become a batch, how many of them go there."""
