def write_page(rows, page):
    pass
