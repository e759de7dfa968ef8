"""What sites report: their documents, how they are asked, and when."""
