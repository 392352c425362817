"""The report object, and its output formats. They open no file but the templates of the HTML page."""
