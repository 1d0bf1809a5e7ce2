"""Person re-identification across modalities and cameras: field report 003."""
