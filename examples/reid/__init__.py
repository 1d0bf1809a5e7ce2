"""Person re-identification across lights and cameras: field report 003."""
