"""What the three examples share: settings, a backbone, made-up data, and the habits that --before restores."""
