# Sleeps past any deadline that one would give it here.
echo "going to sleep"
exec sleep 600
