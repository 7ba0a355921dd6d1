"""What happened, for people to read: text, tables and pages made from results and facts."""
