"""The two scripts at the top of a bridge's folder, as real files. `parcel` copies them; nobody imports them."""
