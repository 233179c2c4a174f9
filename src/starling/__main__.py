"""`python -m starling`"""

from starling.cli.main import main

main()
