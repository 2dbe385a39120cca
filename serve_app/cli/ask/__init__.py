"""`tideserve ask`: send one prompt to a running application and follow the answer."""
