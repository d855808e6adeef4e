"""numbers -> seconds and bytes: device models and prices."""
