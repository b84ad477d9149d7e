# Says more than anyone wants to keep: 100 MiB.
head -c 104857600 /dev/zero | tr '\0' 'x'
