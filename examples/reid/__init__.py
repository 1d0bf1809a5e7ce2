"""People found again in other light and by other cameras: field report 003."""
