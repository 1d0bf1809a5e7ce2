"""What people read: tables now, documents later."""
