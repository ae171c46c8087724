"""Reports: where the time of a flow goes, as figures, verdict, text, page and trace. Pure: no workers, no clock."""
