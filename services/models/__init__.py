"""Which checkpoint a MODEL argument means, and how the default one gets here."""
