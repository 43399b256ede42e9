"""Reads the metrics at a URL with the official parser, as strictly as it can, and prints one line for each family."""

import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

with urllib.request.urlopen(sys.argv[1], timeout=30) as response:
    text = response.read().decode()
for family in text_string_to_metric_families(text):
    if not family.documentation:
        sys.exit(f"{family.name} has no help text")
    print(family.type, family.name)
