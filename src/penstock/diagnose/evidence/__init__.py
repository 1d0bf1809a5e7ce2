"""What a recording shows of one loader, floor upon floor: settings, the loop, the workers, the machine."""
