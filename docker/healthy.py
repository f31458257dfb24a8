"""Exit code 0 if a GET of the URL given gives 200 (for container health checks)."""

import sys
import urllib.request

sys.exit(0 if urllib.request.urlopen(sys.argv[1], timeout=4).status == 200 else 1)
