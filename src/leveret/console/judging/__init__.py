"""What the reports of all sites mean together. Pure."""
