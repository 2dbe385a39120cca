"""What the images are made of: lock files, licences, bills of materials, and known vulnerabilities."""
