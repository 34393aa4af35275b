"""Writers of the pages that are made from the code, and of their pictures. The wheel leaves them out.

`make pages` writes all of them, `make pages PAGES="commands claims"` some.
"""
