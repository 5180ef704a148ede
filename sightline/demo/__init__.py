"""`sightline demo`: a lesson that needs no model, and a tour of a real one."""
