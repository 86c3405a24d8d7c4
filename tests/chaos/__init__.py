"""Each call runs at least never twice and loses no outcome, whoever is killed, cut off, stopped or asked again."""
