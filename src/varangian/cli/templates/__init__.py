"""What `varangian new` writes: a rule, an attack and a study that run as they are."""
